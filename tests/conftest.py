"""Settings that every test shares."""

from hypothesis import settings

# Machines that run the tests are busy: an example may take long without anything being wrong.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
