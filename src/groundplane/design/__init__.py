"""Searches: `plan_training` over the performance model, `plan_serving` over it and the service simulator."""

from groundplane.design.deployment_plan import ServingPlan, plan_serving
from groundplane.design.training_answer import Option, Relief, Training, TrainingPlan
from groundplane.design.training_plan import plan_training

__all__ = ["Option", "Relief", "ServingPlan", "Training", "TrainingPlan", "plan_serving", "plan_training"]
