package main

import (
	"strings"
	"testing"
)

func TestFlags(t *testing.T) {
	for _, tt := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"--version"}, exitOK, "evictd-controller ", ""},
		{[]string{"--help"}, exitOK, "", "-leader-elect"},
		{[]string{"now"}, exitUsage, "", `unexpected argument "now"`},
		{[]string{"--log.format", "xml"}, exitUsage, "", `--log.format is text or json, not "xml"`},
		{[]string{"--log.level", "loud"}, exitUsage, "", "log.level"},
		{[]string{"--leader-elect=perhaps"}, exitUsage, "", "leader-elect"},
		{[]string{"--namespace", ""}, exitUsage, "", "no namespace: set --namespace"},
		{[]string{"--identity", ""}, exitUsage, "", "no identity: set --identity"},
		{[]string{"--metrics-address", "nonsense"}, exitUsage, "", `--metrics-address is HOST:PORT, :PORT or 0, not "nonsense"`},
		{[]string{"--fence-agents-dir", "sbin"}, exitUsage, "", `--fence-agents-dir is an absolute path, not "sbin"`},
		{[]string{"--executor-image", "agents"}, exitUsage, "", `--executor-image is NAME:TAG or NAME@sha256:DIGEST, with another tag than latest, not "agents"`},
		{[]string{"--executor-image", "r:5000/agents:latest"}, exitUsage, "", "--executor-image is"},
		{[]string{"--executor-image", "r:5000/agents"}, exitUsage, "", "--executor-image is"},
		{[]string{"--executor-image", "agents@sha256:12"}, exitUsage, "", "--executor-image is"},
		{[]string{"--executor-image", "r:5000/agents:v1", "--kubeconfig", "/does/not/exist"}, exitFailed, "", "/does/not/exist"},
		{[]string{"--executor-image", "agents@sha256:" + strings.Repeat("a", 64), "--kubeconfig", "/does/not/exist"}, exitFailed, "", "/does/not/exist"},
		{[]string{"execute"}, exitUsage, "", "--request is missing"},
		{[]string{"execute", "--help"}, exitOK, "", "-fence-agents-dir"},
		{[]string{"execute", "--reboot"}, exitUsage, "", "not defined"},
		{[]string{"execute", "--request", "x", "off"}, exitUsage, "", `unexpected argument "off"`},
		{[]string{"execute", "--request", "/does/not/exist"}, 3, "", "read the request"},
		{[]string{"--metrics-address", ""}, exitUsage, "", "--metrics-address is"},
		{[]string{"--affinity", "perhaps"}, exitUsage, "", `--affinity is observe, enforce or off, not "perhaps"`},
		{[]string{"--probe-address", ":70000"}, exitUsage, "", "--probe-address is"},
		{[]string{"--webhook-address", "9443"}, exitUsage, "", `--webhook-address is HOST:PORT, :PORT or 0, not "9443"`},
		{[]string{"--webhook-cert-dir", "certs"}, exitUsage, "", `--webhook-cert-dir is an absolute path, not "certs"`},
		{[]string{"--webhook-address", ":9443", "--extender-client-ca", "ca.crt"}, exitUsage, "", `--extender-client-ca is an absolute path, not "ca.crt"`},
		{[]string{"--extender-client-ca", "/ca.crt"}, exitUsage, "", "--extender-client-ca needs --webhook-address"},
		{[]string{"--kdump-address", "7410"}, exitUsage, "", `--kdump-address is HOST:PORT, :PORT or 0, not "7410"`},
		{[]string{"--leader-elect-lease-duration", "12s", "--leader-elect-renew-deadline", "11s"}, exitUsage, "", "raise the first, or lower the second"},
		{[]string{"--leader-elect-retry-period", "0"}, exitUsage, "", "--leader-elect-retry-period is at least 100ms"},
		{[]string{"--leader-elect-lease-duration", "3s", "--leader-elect-renew-deadline", "1.8s", "--leader-elect-retry-period", "0.4s", "--kubeconfig", "/does/not/exist"}, exitFailed, "", "/does/not/exist"},
		{[]string{"--kubeconfig", "/does/not/exist"}, exitFailed, "", "/does/not/exist"},
	} {
		var stdout, stderr strings.Builder
		if code := run(tt.args, &stdout, &stderr); code != tt.code {
			t.Errorf("run(%q) = %d; want %d", tt.args, code, tt.code)
		}
		if !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
			t.Errorf("run(%q) wrote %q and %q; want %q and %q", tt.args, &stdout, &stderr, tt.stdout, tt.stderr)
		}
	}
}

// The defaults are those of the pod, if the controller runs in one.
func TestDefaults(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "fencing")
	t.Setenv("POD_NAME", "evictd-controller-0")
	var stdout, stderr strings.Builder
	run([]string{"--help"}, &stdout, &stderr)
	for _, want := range []string{`(default "fencing")`, `(default "evictd-controller-0")`, `(default ":9189")`} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("help:\n%s\nwant %s", &stderr, want)
		}
	}
}
