package agent

import (
	"context"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/disks"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/execute"
	"github.com/evictd/evictd/agent/signal"
	"github.com/evictd/evictd/agent/state"
)

// The records of futile evictions get the largest directories once they are surveyed.
func TestAddSurvey(t *testing.T) {
	node := t.TempDir()
	d := &daemon{disks: disks.New(disks.Options{Procfs: "/proc", NodePath: node}), stateWriter: state.NewWriter()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.disks.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for d.disks.MountPoint(signal.NodeFsAvailable) == "" {
		time.Sleep(time.Millisecond)
	}
	point := d.disks.MountPoint(signal.NodeFsAvailable)
	d.records = &execute.Records{}
	byBytes, byInodes := []evict.DirectoryUsage{{Path: "/b", Bytes: 5}}, []evict.DirectoryUsage{{Path: "/i", Inodes: 7}}
	d.records.Restore([]evict.Record{
		{UID: "bytes", Cause: "nodefs.available", Futile: true},
		{UID: "inodes", Cause: "nodefs.inodesFree", Futile: true},
		{UID: "helped", Cause: "nodefs.available"},
		{UID: "memory", Cause: "memory.available", Futile: true},
		{UID: "known", Cause: "nodefs.available", Futile: true, SystemDirectories: byInodes},
	})
	d.addSurvey("/elsewhere", byInodes, byBytes)
	d.addSurvey(point, byBytes, byInodes)
	want := map[string]string{"bytes": "/b", "inodes": "/i", "helped": "", "memory": "", "known": "/i"}
	for _, rec := range d.records.List() {
		got := ""
		for _, dir := range rec.SystemDirectories {
			got += dir.Path
		}
		if got != want[rec.UID] {
			t.Errorf("record of %s names %q; want %q", rec.UID, got, want[rec.UID])
		}
	}
}
