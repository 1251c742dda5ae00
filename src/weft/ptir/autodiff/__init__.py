"""Reverse-mode differentiation of bodies: activity analysis, backward walk, control flow."""
