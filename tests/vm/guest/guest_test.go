package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/evictd/evictd/tests/vm/protocol"
)

func TestParseRecord(t *testing.T) {
	for _, tt := range []struct {
		record, message string
		ofKernel        bool
	}{
		{"6,339,5140900,-;NET: Registered PF_INET protocol family\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n", "NET: Registered PF_INET protocol family", true},
		{"3,512,40120394,-;Out of memory: Killed process 412 (hog) total-vm:4242596kB\n", "Out of memory: Killed process 412 (hog) total-vm:4242596kB", true},
		{"30,600,5000,-;systemd[1]: Out of memory: Killed process 1; or so\n", "systemd[1]: Out of memory: Killed process 1; or so", false},
		{"4,1,2,c,caller=T1;WARNING: CPU: 0", "WARNING: CPU: 0", true},
		{"x,1,2,-;text", "", false},
		{"6,1,2,-", "", false},
		{"", "", false},
	} {
		if message, ofKernel := parseRecord(tt.record); message != tt.message || ofKernel != tt.ofKernel {
			t.Errorf("parseRecord(%q) = %q, %v; want %q, %v", tt.record, message, ofKernel, tt.message, tt.ofKernel)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add("6,339,5140900,-;NET: Registered PF_INET protocol family\n SUBSYSTEM=acpi\n")
	f.Fuzz(func(t *testing.T, record string) {
		if message, _ := parseRecord(record); strings.Contains(message, "\n") {
			t.Errorf("parseRecord(%q) = %q; want one line", record, message)
		}
	})
}

func TestInitOf(t *testing.T) {
	for cmdline, want := range map[string]string{
		"console=ttyS0 psi=1\n":             "/sbin/init",
		"":                                  "/sbin/init",
		"init=/bin/cat console=ttyS0\n":     "/bin/cat",
		"rdinit=/x systemd.init=/y quiet\n": "/sbin/init",
		"init=/bin/true init=/bin/sh\n":     "/bin/sh",
	} {
		if got := initOf(cmdline); got != want {
			t.Errorf("initOf(%q) = %q; want %q", cmdline, got, want)
		}
	}
}

func TestReadLines(t *testing.T) {
	long := strings.Repeat("x", protocol.MaxLine/8)
	var got []string
	readLines(strings.NewReader("one\ntwo\r\n\n"+long+"y\nlast"), func(line string) { got = append(got, line) })
	want := []string{"one", "two", "", long, "y", "last"}
	if !slices.Equal(got, want) {
		t.Errorf("readLines = %.40q; want %.40q", got, want)
	}
}

func TestCommandFails(t *testing.T) {
	for _, tt := range []struct {
		name    string
		expect  []protocol.Trouble
		happens []protocol.Trouble
		want    protocol.Trouble
	}{
		{"an OOM kill by the kernel", nil, []protocol.Trouble{protocol.KernelOOM}, protocol.KernelOOM},
		{"the first counts", nil, []protocol.Trouble{protocol.Warning, protocol.KernelOOM}, protocol.Warning},
		{"one of a cgroup", nil, []protocol.Trouble{protocol.CgroupOOM, protocol.Stall}, ""},
		{"expected", []protocol.Trouble{protocol.KernelOOM}, []protocol.Trouble{protocol.KernelOOM}, ""},
		{"another than expected", []protocol.Trouble{protocol.KernelOOM}, []protocol.Trouble{protocol.KernelOOM, protocol.Oops}, protocol.Oops},
	} {
		stopped := false
		c := &command{Command: protocol.Command{Expect: tt.expect}, stop: func(error) { stopped = true }}
		for _, trouble := range tt.happens {
			c.fail(trouble, "text of "+string(trouble))
		}
		if c.trouble != tt.want || stopped != (tt.want != "") || tt.want != "" && c.text != "text of "+string(tt.want) {
			t.Errorf("%s: trouble %q, text %q, stopped %v; want %q", tt.name, c.trouble, c.text, stopped, tt.want)
		}
	}
}
