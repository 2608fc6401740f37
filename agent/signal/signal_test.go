package signal

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestSignals(t *testing.T) {
	for i, tt := range []struct {
		name      string
		resource  Resource
		condition Condition
		memory    bool
		disk      bool
		inodes    bool
		format    resource.Format
		prints    string // of 2048
	}{
		{"memory.available", "memory", "MemoryPressure", true, false, false, resource.BinarySI, "2Ki"},
		{"allocatableMemory.available", "memory", "MemoryPressure", true, false, false, resource.BinarySI, "2Ki"},
		{"nodefs.available", "ephemeral-storage", "DiskPressure", false, true, false, resource.BinarySI, "2Ki"},
		{"nodefs.inodesFree", "inodes", "DiskPressure", false, true, true, resource.DecimalSI, "2048"},
		{"imagefs.available", "ephemeral-storage", "DiskPressure", false, true, false, resource.BinarySI, "2Ki"},
		{"imagefs.inodesFree", "inodes", "DiskPressure", false, true, true, resource.DecimalSI, "2048"},
		{"containerfs.available", "ephemeral-storage", "DiskPressure", false, true, false, resource.BinarySI, "2Ki"},
		{"containerfs.inodesFree", "inodes", "DiskPressure", false, true, true, resource.DecimalSI, "2048"},
		{"pid.available", "pids", "PIDPressure", false, false, false, resource.DecimalSI, "2048"},
	} {
		s, ok := Parse(tt.name)
		if !ok || int(s) != i {
			t.Errorf("Parse(%q) = %d, %t; want %d, true", tt.name, s, ok, i)
			continue
		}
		if All()[i] != s || s.String() != tt.name {
			t.Errorf("signal %d = %s; want %s", i, s, tt.name)
		}
		if s.Resource() != tt.resource || s.Condition() != tt.condition {
			t.Errorf("%s: resource %s, condition %s; want %s, %s", s, s.Resource(), s.Condition(), tt.resource, tt.condition)
		}
		if s.IsMemory() != tt.memory || s.IsDisk() != tt.disk || s.IsInodes() != tt.inodes {
			t.Errorf("%s: memory, disk, inodes = %t, %t, %t; want %t, %t, %t", s, s.IsMemory(), s.IsDisk(), s.IsInodes(), tt.memory, tt.disk, tt.inodes)
		}
		if s.Format() != tt.format || s.Quantity(2048) != tt.prints {
			t.Errorf("%s.Quantity(2048) = %s in %s; want %s in %s", s, s.Quantity(2048), s.Format(), tt.prints, tt.format)
		}
	}
	if len(All()) != int(Count) {
		t.Errorf("len(All()) = %d; want %d", len(All()), Count)
	}
}

func TestSignalText(t *testing.T) {
	for _, s := range All() {
		text, err := s.MarshalText()
		if err != nil {
			t.Fatalf("%s.MarshalText: %v", s, err)
		}
		var back Signal
		if err := back.UnmarshalText(text); err != nil || back != s {
			t.Errorf("UnmarshalText(%q) = %s, %v; want %s", text, back, err, s)
		}
	}
	for _, name := range []string{"", "memory", "Memory.available", "memory.available ", "unknown"} {
		var s Signal
		err := s.UnmarshalText([]byte(name))
		if err == nil || err.Error() != "unsupported eviction signal "+name {
			t.Errorf("UnmarshalText(%q) error = %v; want the kubelet's", name, err)
		}
	}
	if got := Count.String(); got != "unknown" {
		t.Errorf("Count.String() = %q; want unknown", got)
	}
}
