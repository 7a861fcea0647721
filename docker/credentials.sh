#!/bin/sh
# Makes the server's credentials. Each service has a volume of its own, mounted here as
# /credentials/<service>, with what it needs and nothing else; the CA's key stays in `ca`, which no
# other service mounts. What exists is kept: a later start adds what a new SuperNode needs, and
# renews a certificate in its last month, of another CA, or with other names than GATEWAY_NAMES says.
set -eu
umask 022
user=10001
cd "${1:-/credentials}"
printf '[req]\ndistinguished_name=name\n[name]\n' > /tmp/openssl.cnf
export OPENSSL_CONF=/tmp/openssl.cnf

# private FILE: from now on only the services' user can read it
private() { chown "$user" "$1"; }

# certify SERVICE NAMES: a certificate for the service under these names
certify() {
    next_month=$(($(date +%s) + 2592000))
    if [ "$(cat "$1/server.names" 2> /dev/null)" = "$2" ] && openssl verify \
        -attime "$next_month" -CAfile ca/ca.crt "$1/server.crt" > /dev/null 2>&1; then return; fi
    rm -f "$1/server.key"
    openssl req -x509 -CA ca/ca.crt -CAkey ca/ca.key -newkey ec \
        -pkeyopt ec_paramgen_curve:P-256 -noenc -days 365 \
        -keyout "$1/server.key" -out "$1/server.crt" -subj "/CN=$1" -addext "subjectAltName=$2" \
        -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=serverAuth 2> /dev/null
    private "$1/server.key"
    echo "$2" > "$1/server.names"
    echo "credentials: new certificate of the $1 for $2; restart it"
}

extra=$(python /opt/greedyfed/names.py "${GATEWAY_NAMES:-}")
if [ ! -f ca/ca.crt ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 3650 \
        -keyout ca/ca.key -out ca/ca.crt -subj '/CN=greedyfed cluster CA' \
        -addext basicConstraints=critical,CA:TRUE,pathlen:0 \
        -addext keyUsage=critical,keyCertSign,cRLSign 2> /dev/null
fi
[ -f ca/executor.secret ] || (umask 077 && openssl rand -hex 32 > ca/executor.secret)

certify superlink DNS:superlink,DNS:localhost,IP:127.0.0.1
certify gateway "DNS:gateway,DNS:localhost,IP:127.0.0.1${extra:+,$extra}"

for service in superlink serverapp; do
    [ -f $service/executor.secret ] && continue
    (umask 077 && cp ca/executor.secret $service/)
    private $service/executor.secret
done

for node in supernode-*; do  # of a cluster on one machine; elsewhere a client makes its own key
    [ -d "$node" ] || continue
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
