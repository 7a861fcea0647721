#!/bin/sh
# Cuts scikit-learn's digits up for the demo: each client's part goes into that client's own volume,
# mounted here as /data/client-<i>, the held-out part into the server's. With a file in every volume
# there is nothing to do, so that data you put there instead stay.
set -eu
cd /data
clients=0 missing=
for volume in client-* server; do
    [ "$volume" = server ] || clients=$((clients + 1))
    [ -f "$volume/$volume.npz" ] || missing=yes
done
if [ -n "$missing" ]; then
    greedyfed partition --dataset digits --num-clients "$clients" --out /tmp/parts
    for volume in client-* server; do
        rm -f "$volume/$volume.npz"
        install -m 600 "/tmp/parts/$volume.npz" "$volume/"
        chown 10001 "$volume/$volume.npz"
    done
fi
echo "data: $clients clients"
