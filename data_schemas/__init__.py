"""What a table or a batch may contain, and the errors a user can see."""
