"""What is given: ranks and nodes, the global batch and its items, phases and what they must keep to, how to plan."""
