package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestExitCodes checks, among others, that an invalid configuration has its own exit
// code, after which the unit does not restart evictd.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	wrong := filepath.Join(dir, "wrong.yaml")
	if err := os.WriteFile(wrong, []byte("apiVersion: evictd.io/v1alpha1\nkind: AgentConfiguration\nevictionHrad: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--state-dir", filepath.Join(dir, "state"), "--control-socket", filepath.Join(dir, "s"), "--fence-file", filepath.Join(dir, "fences"), "--web.listen-address="}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--config", wrong}, exitConfig, wrong + ":3: evictionHrad: "},
		{[]string{"--config", filepath.Join(dir, "none.yaml")}, exitConfig, "none.yaml"},
		{[]string{"--kubelet-config", filepath.Join(dir, "none.yaml")}, exitConfig, "none.yaml"},
		{[]string{"--web.config.file", filepath.Join(dir, "none.yaml")}, exitConfig, "none.yaml"},
		{[]string{"--path.cgroupfs", dir}, exitFailure, "evictd: "},
		{[]string{"--confg", wrong}, exitUsage, "-confg"},
	} {
		var out, errs bytes.Buffer
		code := run(append(tt.args, flags...), &out, &errs)
		if code != tt.code || !strings.Contains(errs.String(), tt.want) {
			t.Errorf("%v exits %d with %q; want %d and %q", tt.args, code, errs.String(), tt.code, tt.want)
		}
	}
}

// TestReleaseFences checks that fences are released only while no evictd uses them.
func TestReleaseFences(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fences")
	release := func() (code int, out, errs bytes.Buffer) {
		code = run([]string{"--release-fences", "--fence-file", file}, &out, &errs)
		return code, out, errs
	}
	if code, out, errs := release(); code != exitOK || out.String() != "no fences\n" {
		t.Errorf("without a file: exit code %d with %q, %q", code, out.String(), errs.String())
	}
	f, err := os.Create(file)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	code, out, errs := release()
	if code != exitFailure || out.String() != "" || !strings.Contains(errs.String(), "another evictd uses the file; stop it (systemctl stop evictd)") {
		t.Errorf("beside an evictd: exit code %d with %q, %q; want the remedy", code, out.String(), errs.String())
	}
}
