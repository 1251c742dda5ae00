"""Where the values of a program lie in memory, for backends that place them themselves."""

from weft.driver.buffers.plan import Buffer, BufferPlan, Role, Scratch, plan_buffers
from weft.driver.buffers.views import View

__all__ = ["Buffer", "BufferPlan", "Role", "Scratch", "View", "plan_buffers"]
