// Package service_test is about evictd as a service of systemd: what the unit
// says, which any machine can check, and what comes of it under a systemd that
// runs.
//
// The latter installs evictd, so that it runs in a virtual machine only:
//
//	EVICTD_TEST_VM=1           this machine may be changed
//	EVICTD_TEST_PROGRAMS=DIR   where evictd, evictctl and hog are
//	EVICTD_TEST_DEPLOY=DIR     deploy/, if not that of the source
package service_test

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	// The same executable is what runs in evictd's place, to tell what it may do
	// there.
	if path := os.Getenv("EVICTD_TEST_WITNESS"); path != "" {
		os.Exit(testify(path))
	}
	os.Exit(m.Run())
}
