"""Files of an attempt: code packages, inputs, artifacts, models, and their transfer."""
