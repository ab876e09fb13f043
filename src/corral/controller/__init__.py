"""The shell around the decisions: store, queue, loop, intake, feed."""
