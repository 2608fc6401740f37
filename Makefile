# What a user needs: make demo, make test. What a developer needs: make ci,
# make bench. Everything that is built lands in .build.

GO ?= go
BUILD := .build
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X github.com/evictd/evictd/agent/version.release=$(VERSION)
export CGO_ENABLED ?= 0

.PHONY: build
build: ## the two commands, into .build
	@mkdir -p $(BUILD)
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BUILD)/ ./cmd/...

.PHONY: run
run: build ## evictd in dry run on this host as it is
	$(BUILD)/evictd --dry-run --state-dir $(BUILD)/state --control-socket $(abspath $(BUILD))/evictd.sock

.PHONY: demo
demo: build ## a hog is killed under a private containerd (DRY_RUN=1 only says so)
	$(GO) run ./tests/demo $(if $(DRY_RUN),-dry-run)

.PHONY: test
test: build fetch ## everything that needs no virtual machine
	$(GO) test $(TESTFLAGS) ./...

# A private containerd runs the tests' pods. Where the machine has none, Debian's
# packages are unpacked into a cache directory; without that, tests are skipped.
.PHONY: fetch
fetch:
	@if ! command -v containerd >/dev/null || ! command -v runc >/dev/null; then \
		sh tests/node/fetch.sh || echo "no containerd: tests that need one are skipped"; fi

.PHONY: bench
bench: build ## the figures, beside what a user would run instead
	$(GO) run ./tests/bench

.PHONY: clean
clean:
	rm -rf $(BUILD)

# Continuous integration: what `make test` does, and what keeps the tree tidy.

.PHONY: ci
ci: lint
	@mkdir -p $(BUILD)
	$(MAKE) --no-print-directory test TESTFLAGS='-v -timeout 20m' >$(BUILD)/test.log 2>&1; \
	status=$$?; grep -E '^(ok|FAIL|panic:|---? FAIL|\?)' $(BUILD)/test.log || true; \
	if [ $$status -ne 0 ]; then tail -n 200 $(BUILD)/test.log; exit $$status; fi
	sh tests/skips.sh $(BUILD)/test.log tests/skips.txt
	$(MAKE) --no-print-directory race fuzz

.PHONY: lint
lint:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted with gofmt: $$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

# The race detector needs a C compiler.
.PHONY: race
race:
	@if ! command -v gcc >/dev/null; then echo "race: skipped, no C compiler"; else \
	CGO_ENABLED=1 $(GO) test -race -short -timeout 15m ./agent/... ./cri/... ./kernel/...; fi

FUZZTIME ?= 5s
.PHONY: fuzz
fuzz: ## every fuzz target for a few seconds
	@mkdir -p $(BUILD)
	@set -e; for package in $$($(GO) list ./...); do \
		dir=$$($(GO) list -f '{{.Dir}}' $$package); \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go 2>/dev/null); do \
			echo "fuzz $$package $$target"; \
			$(GO) test $$package -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) >$(BUILD)/fuzz.log 2>&1 || \
				{ cat $(BUILD)/fuzz.log; exit 1; }; \
		done; \
	done
