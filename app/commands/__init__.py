"""One file a command. Each is thin: it reads options, calls one function of another room and returns a `Report`."""
