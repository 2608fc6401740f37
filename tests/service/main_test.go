// Package service_test tests evictd as a systemd service: the content of the units, on any machine, and its effect
// under a running systemd.
//
// The latter tests install evictd and run only in a virtual machine:
//
//	EVICTD_TEST_VM=1           this machine may be changed
//	EVICTD_TEST_PROGRAMS=DIR   the directory of evictd, evictctl, evictd-kube and hog
//	EVICTD_TEST_DEPLOY=DIR     deploy/, if not that of the source tree
package service_test

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	// This executable also runs in the unit instead of evictd, as a probe of its permissions.
	if path := os.Getenv("EVICTD_TEST_PROBE"); path != "" {
		os.Exit(probeMain(path))
	}
	os.Exit(m.Run())
}
