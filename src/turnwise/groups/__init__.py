"""Finite groups of the plane, their actions and representations, and equivariance errors."""

from turnwise.groups.actions import act_on_field as act_on_field
from turnwise.groups.actions import act_on_image as act_on_image
from turnwise.groups.actions import act_on_points as act_on_points
from turnwise.groups.actions import act_on_regular as act_on_regular
from turnwise.groups.actions import leave_fixed as leave_fixed
from turnwise.groups.equivariance import Action as Action
from turnwise.groups.equivariance import assert_equivariant as assert_equivariant
from turnwise.groups.equivariance import equivariance_error as equivariance_error
from turnwise.groups.equivariance import equivariance_errors as equivariance_errors
from turnwise.groups.finite import GRID_GROUPS as GRID_GROUPS
from turnwise.groups.finite import PlanarGroup as PlanarGroup
from turnwise.groups.finite import require_grid_group as require_grid_group
