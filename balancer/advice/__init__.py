"""What would help a training job, computed on some steps of its log: for who decides, before anything is changed."""
