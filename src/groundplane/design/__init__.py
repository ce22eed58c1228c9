"""Searches over the performance model: `plan_training` answers most questions in one call."""

from groundplane.design.training_answer import Option, Relief, Training, TrainingPlan
from groundplane.design.training_plan import plan_training

__all__ = ["Option", "Relief", "Training", "TrainingPlan", "plan_training"]
