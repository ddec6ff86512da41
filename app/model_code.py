"""The code that MLflow stores beside the checkpoint (models-from-code) and runs to load a registered model.

It holds no code of its own: the installed package, whose version is checked, does the work.
"""

from app.tracking import declare_model

declare_model()
