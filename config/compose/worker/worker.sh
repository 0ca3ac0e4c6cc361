#!/bin/sh
# A worker that was written without a fence in mind: it writes its name to order 7 each second, and
# does not look at the answers. `fencepost attach` sets FENCEPOST_URL, and ends it.
while :; do
    curl -sS -o /dev/null -X PUT -d "$NAME" "$FENCEPOST_URL/orders/7"
    sleep 1
done
