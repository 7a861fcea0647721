#!/bin/sh
# Makes a client's key pair on the client's own machine: node.key, which stays there, and
# <client-id>.pub, which goes to the server's operator.
set -eu
umask 022
cd /credentials
case "$CLIENT_ID" in *[!A-Za-z0-9._-]*)
    echo "CLIENT_ID = $CLIENT_ID: only letters, digits, '.', '_' and '-'; mend .env" >&2
    exit 1 ;;
esac
if [ -e node.key ]; then
    echo "credentials/node.key is there already; to replace it, move it away first" >&2
    exit 1
fi
python /opt/greedyfed/keypair.py node.key "$CLIENT_ID.pub"
chown 10001 node.key  # from now on only the services' user can read it
echo "made credentials/node.key; send credentials/$CLIENT_ID.pub to the server's operator"
