"""Files that go to the controller, and those that come from it."""
