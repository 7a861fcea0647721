#!/bin/sh
# Makes the cluster's credentials on first start. Each service has a volume of its own, mounted here
# as /credentials/<service>, with what it needs and nothing else; the CA's key stays in `ca`, which
# no other service mounts. What exists is kept: a later start adds what a new SuperNode needs, and
# renews a server certificate in its last month.
set -eu
umask 022
user=10001
cd "${1:-/credentials}"
printf '[req]\ndistinguished_name=name\n[name]\n' > /tmp/openssl.cnf
export OPENSSL_CONF=/tmp/openssl.cnf

# private FILE: from now on only the services' user can read it
private() { chown "$user" "$1"; }

if [ ! -f ca/ca.crt ]; then
    (umask 077 && openssl rand -hex 32 > ca/executor.secret)
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 \
        -keyout ca/ca.key -out ca/ca.crt -subj '/CN=greedyfed cluster CA' \
        -addext basicConstraints=critical,CA:TRUE,pathlen:0 \
        -addext keyUsage=critical,keyCertSign,cRLSign 2> /dev/null
fi

for service in superlink gateway; do
    openssl x509 -in $service/server.crt -noout -checkend 2592000 > /dev/null 2>&1 && continue
    rm -f $service/server.key
    openssl req -x509 -CA ca/ca.crt -CAkey ca/ca.key -newkey ec \
        -pkeyopt ec_paramgen_curve:P-256 -noenc -days 365 \
        -keyout $service/server.key -out $service/server.crt -subj "/CN=$service" \
        -addext "subjectAltName=DNS:$service,DNS:localhost,IP:127.0.0.1" \
        -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=serverAuth 2> /dev/null
    private $service/server.key
done

for service in superlink serverapp; do
    [ -f $service/executor.secret ] && continue
    (umask 077 && cp ca/executor.secret $service/)
    private $service/executor.secret
done

for node in supernode-*; do
    if [ ! -f "$node/node.pub" ]; then
        python /opt/greedyfed/keypair.py "$node/node.key" "$node/node.pub"
        private "$node/node.key"
    fi
    cp "$node/node.pub" "operator/client-${node#supernode-}.pub"  # registered by this name
done

for service in *; do
    [ "$service" = ca ] || cp ca/ca.crt "$service/ca.crt"
done
echo "credentials: complete"
