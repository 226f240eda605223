"""Tests of what ships: workflows, images, the bake file and the release check."""
