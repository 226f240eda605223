"""Read what is really in a built library or wheel, and compare it with what its plan says."""

from aot.audit.images import Image, count_images, parse_images, read_images
from aot.audit.library import LibraryExpectation, LibraryReport, audit_library
from aot.audit.modules import DeviceUnit, ModuleImages
from aot.audit.report import Finding, as_json, print_report, require_passed
from aot.audit.wheel import (
    DeclaredBuild,
    WheelExpectation,
    WheelReport,
    audit_wheel,
    declared_build,
    platform_tag,
)

__all__ = [
    "DeclaredBuild",
    "DeviceUnit",
    "Finding",
    "Image",
    "LibraryExpectation",
    "LibraryReport",
    "ModuleImages",
    "WheelExpectation",
    "WheelReport",
    "as_json",
    "audit_library",
    "audit_wheel",
    "count_images",
    "declared_build",
    "parse_images",
    "platform_tag",
    "print_report",
    "read_images",
    "require_passed",
]
