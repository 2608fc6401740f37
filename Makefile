# What a user needs: make demo, make demo-fence, make test. What a developer needs: make ci,
# make bench. Everything that is built lands in .build.

GO ?= go
BUILD := .build
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
CONTROLLER_GEN := sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0
GOCYCLO := github.com/fzipp/gocyclo/cmd/gocyclo@v0.6.0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X github.com/evictd/evictd/agent/version.release=$(VERSION)
export CGO_ENABLED ?= 0

.PHONY: build
build: ## the commands, into .build
	@mkdir -p $(BUILD)
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/ ./cmd/...

# The image's time is that of the commit, so that the same commit gives the same image.
IMAGE_ARCH ?= amd64 arm64
IMAGE := $(BUILD)/evictd-$(VERSION).oci.tar

.PHONY: image
image: ## a container image of the commands as a tar; IMAGE_ARCH="amd64 arm64"
	@set -e; for arch in $(IMAGE_ARCH); do \
		mkdir -p $(BUILD)/linux-$$arch; \
		CGO_ENABLED=0 GOOS=linux GOARCH=$$arch $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/linux-$$arch/ ./cmd/...; \
	done
	$(GO) run ./deploy/image -o $(IMAGE) -version '$(VERSION)' -revision '$(shell git rev-parse HEAD 2>/dev/null)' \
		-created '$(or $(shell git log -1 --format=%ct 2>/dev/null),0)' $(foreach arch,$(IMAGE_ARCH),$(arch)=$(BUILD)/linux-$(arch))

.PHONY: run
run: build ## evictd in dry run on this host as it is
	$(BUILD)/evictd --dry-run --state-dir $(BUILD)/state --control-socket $(abspath $(BUILD))/evictd.sock

.PHONY: demo
demo: build ## a hog is killed under a private containerd (DRY_RUN=1 only says so)
	$(GO) run ./tests/demo $(if $(DRY_RUN),-dry-run)

.PHONY: demo-fence
demo-fence: build ## a lost node of a real control plane is fenced and recovers; needs no root
	$(GO) run ./tests/fencing/demo

# The clusters of tests/fencing and tests/affinity would slow down those of tests/cluster, in which an eviction races
# with the kubelet.
.PHONY: test
test: build fetch ## everything that needs no virtual machine
	$(GO) test $(TESTFLAGS) $$($(GO) list ./... | grep -v -e '/tests/fencing$$' -e '/tests/affinity$$')
	$(GO) test $(TESTFLAGS) ./tests/fencing ./tests/affinity

EVICTIONS ?= 200
.PHONY: test-evictions
test-evictions: build fetch ## random evictions under load beside a real kubelet, for about 15 minutes; EVICTIONS=200
	EVICTD_TEST_EVICTIONS=$(EVICTIONS) $(GO) test -v -count 1 -timeout 60m -run '^TestRandomEvictions$$' ./tests/cluster

# A private containerd runs the tests' pods. Where the machine has none, Debian's
# packages are unpacked into a cache directory; without that, tests are skipped. ipmi_sim,
# for tests that need a BMC, and promtool, etcd and Kubernetes, for tests/cluster, come
# into the same directory.
.PHONY: fetch
fetch:
	@if ! command -v containerd >/dev/null || ! command -v runc >/dev/null; then \
		sh tests/node/fetch.sh || echo "no containerd: tests that need one are skipped"; fi
	@sh tests/bmc/fetch.sh || echo "no ipmi_sim: tests that need a BMC are skipped"
	@GO='$(GO)' sh tests/cluster/fetch.sh || echo "no Kubernetes: tests that need it are skipped"

.PHONY: bench
bench: build ## the figures, beside what a user would run instead
	$(GO) run ./tests/bench -results tests/bench

# The same tests in virtual machines, on cgroup v2 with systemd: KERNEL=6.1|6.12
# for one kernel, SUITE= for one suite (tests/vm/README.md). The test bed is a
# program, not `go run`, so that it hears of a signal to make.
VM := $(BUILD)/test-vm $(if $(KERNEL),-kernel $(KERNEL)) $(if $(SUITE),-suite $(SUITE))

.PHONY: vm
vm:
	@mkdir -p $(BUILD)
	$(GO) build -o $(BUILD)/test-vm ./tests/vm

.PHONY: test-vm
test-vm: vm ## every class of tests once on each kernel
	$(VM) -profile test

.PHONY: test-vm-full
test-vm-full: vm ## the whole matrix; writes tests/vm/results.md
	$(VM) -profile full

.PHONY: vm-shell
vm-shell: vm ## a shell in such a machine; KERNEL=6.1 or 6.12
	$(BUILD)/test-vm -shell -kernel $(or $(KERNEL),6.12)

.PHONY: generate
generate: ## the BPF objects, which takes clang-16
	$(GO) generate ./bpf

# The API types in API, and the directory of the CustomResourceDefinition. The first of API is embedded in the second.
API := agent/fence agent/fence/nodefence
CRD := deploy/kubernetes/controller/crd

.PHONY: generate-api
generate-api: ## the deep copies of the API types, and the CustomResourceDefinition
	$(GO) run $(CONTROLLER_GEN) object $(API:%=paths=./%)
	$(GO) run $(CONTROLLER_GEN) crd $(API:%=paths=./%) output:dir=$(CRD)

# Fails if the generated files are not those of the API types. It writes nothing to the tree.
.PHONY: check-api
check-api:
	@generated=$$(mktemp -d); trap 'rm -rf "$$generated"' EXIT; stale=; set -e; \
	for package in $(API); do \
		$(GO) run $(CONTROLLER_GEN) object paths=./$$package output:dir=$$generated/$$package; \
		diff -u $$package/zz_generated.deepcopy.go $$generated/$$package/zz_generated.deepcopy.go || stale=1; \
	done; \
	$(GO) run $(CONTROLLER_GEN) crd $(API:%=paths=./%) output:dir=$$generated/crd; \
	diff -ru $(CRD) $$generated/crd || stale=1; \
	if [ -n "$$stale" ]; then echo "the API types have changed: run make generate-api"; exit 1; fi

.PHONY: clean
clean:
	rm -rf $(BUILD)

# Continuous integration: what `make test` does, and what keeps the tree tidy.

.PHONY: ci
ci: lint
	@mkdir -p $(BUILD)
	sh tests/bmc/fetch.sh
	GO='$(GO)' sh tests/cluster/fetch.sh
	$(MAKE) --no-print-directory test TESTFLAGS='-v -timeout 30m' >$(BUILD)/test.log 2>&1; \
	status=$$?; grep -E '^(ok|FAIL|panic:|---? FAIL|\?)' $(BUILD)/test.log || true; \
	if [ $$status -ne 0 ]; then sh tests/failures.sh $(BUILD)/test.log; exit $$status; fi
	sh tests/skips.sh $(BUILD)/test.log tests/skips.txt
	$(MAKE) --no-print-directory cover race fuzz smoke

# One boot of one kernel: a hog of each class, a soft eviction, the unit.
.PHONY: smoke
smoke: vm
	$(BUILD)/test-vm -profile smoke -kernel $(or $(KERNEL),6.12)

# A function whose cyclomatic complexity is above 20 has a line "// Complexity: why"
# at the end of its comment, and the directive //gocyclo:ignore below it.
.PHONY: lint
lint: check-api
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted with gofmt: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags bench ./tests/affinity ./tests/cluster ./tests/fencing
	$(GO) run $(STATICCHECK) ./...
	$(GO) run $(STATICCHECK) -tags bench ./tests/affinity ./tests/cluster ./tests/fencing
	$(GO) run $(GOCYCLO) -over 20 $$(git ls-files '*.go')
	@awk '/^\/\/gocyclo:ignore$$/ && reason !~ /^\/\/ Complexity: ./ { print FILENAME ":" FNR ": no reason"; bad = 1 } \
		!/^\/\/$$/ { reason = $$0 } END { exit bad }' $$(git ls-files '*.go')

# The packages that decide when to evict and carry that out: their tests execute at
# least COVERAGE percent of the statements.
COVERED := ./agent/loop ./agent/execute
COVERAGE := 85
.PHONY: cover
cover:
	@$(GO) test -cover $(COVERED) | awk '{ print } !/^ok/ { bad = 1 } \
		match($$0, /coverage: [0-9.]+/) && substr($$0, RSTART + 10, RLENGTH - 10) + 0 < $(COVERAGE) { print "less than $(COVERAGE) %"; bad = 1 } END { exit bad }'

# The race detector needs a C compiler.
.PHONY: race
race:
	@if ! command -v gcc >/dev/null; then echo "race: skipped, no C compiler"; else \
	CGO_ENABLED=1 $(GO) test -race -short -timeout 15m ./agent/... ./cri/... ./kernel/...; fi

# A number of inputs, not a time: at the end of a time Go before 1.27 may fail a target with
# "context deadline exceeded" for no fault of its own (go.dev/issue/75804).
FUZZTIME ?= 20000x
.PHONY: fuzz
fuzz: ## every fuzz target for a few seconds
	@mkdir -p $(BUILD)
	@set -e; for package in $$($(GO) list ./...); do \
		dir=$$($(GO) list -f '{{.Dir}}' $$package); \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go 2>/dev/null); do \
			echo "fuzz $$package $$target"; \
			$(GO) test $$package -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x >$(BUILD)/fuzz.log 2>&1 || \
				{ cat $(BUILD)/fuzz.log; exit 1; }; \
		done; \
	done
