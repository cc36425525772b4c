"""How a step is cut, as callers ask for it."""
