"""Programs as ONNX models: one rule for each op, and graphs of nodes."""
