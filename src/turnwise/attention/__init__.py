"""HOW tokens mix: functions on tensors, without weights."""
