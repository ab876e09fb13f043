"""The controller's side of engines: all of them together, what they report, whose fault."""
