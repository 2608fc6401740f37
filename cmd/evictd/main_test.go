package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
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
	flags := []string{"--state-dir", filepath.Join(dir, "state"), "--control-socket", filepath.Join(dir, "s"), "--web.listen-address="}
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
