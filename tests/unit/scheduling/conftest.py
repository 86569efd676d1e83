from hypothesis import settings

# The first example of a test may compile what it calls.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
