"""The yardstick: measures fencepost beside other proxies. `benches/run.sh` is the way in."""
