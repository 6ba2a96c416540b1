"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A deadline would be a timed test, and machines that run tests are busy. On CI hypothesis has none by itself.
if not settings().derandomize:
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
