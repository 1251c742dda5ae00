"""Watching programs: dumps on disk, profiles, and a look at the tensors in between."""

from weft.ops.trace.config import TraceConfig, profile, trace

__all__ = ["TraceConfig", "profile", "trace"]
