"""Functions with the signatures of other projects, so that one import line changes."""
