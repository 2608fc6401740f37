package act

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkLastGone measures how long after the exit of a hog's process, of 256 MiB, the end
// of its kill is reported. Run it with -benchtime=50x.
func BenchmarkLastGone(b *testing.B) {
	var late []time.Duration
	for b.Loop() {
		p := newTestCgroup(b)
		cmd := p.run("exec perl -e '$x = \"a\" x (256<<20); sleep 1000'")
		handle := p.prepare(p.container("c1"))
		p.waitFor("the hog has its memory", func() bool { used, _ := handle.Usage(); return used > 256<<20 })
		fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
		if err != nil {
			b.Fatal(err)
		}
		exit := make(chan time.Time)
		go func() {
			for !processExited(fd) {
				if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
					b.Error(err)
					break
				}
			}
			exit <- time.Now()
		}()
		var reports progressLog
		k := NewKiller(p.hierarchy, "/proc", nil, reports.record)
		k.Evict(b.Context(), hardJob(p.container("c1")))
		exited := <-exit
		k.Wait()
		unix.Close(fd)
		for _, r := range reports.reports {
			if r.Stage == LastGone {
				late = append(late, r.Time.Sub(exited))
			}
		}
	}
	slices.Sort(late)
	b.ReportMetric(float64(late[len(late)/2].Microseconds()), "median-µs")
	b.ReportMetric(float64(late[len(late)-1].Microseconds()), "max-µs")
	b.ReportMetric(0, "ns/op")
}
