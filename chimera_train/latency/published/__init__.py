"""Step times out of profiles and measurements that other people have published."""
