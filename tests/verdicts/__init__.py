"""Graded set of sick and healthy trainings, whose true cost the trainings measure themselves."""
