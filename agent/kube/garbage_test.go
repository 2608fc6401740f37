package kube

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The size of a fact is at least the memory that it takes.
func TestCost(t *testing.T) {
	several := func(change func(p *Pod, i int)) func(int) *Pod {
		return func(i int) *Pod {
			p := tiny(i)
			for j := range 20 {
				change(p, j)
			}
			return p
		}
	}
	for name, pod := range map[string]func(int) *Pod{
		"tiny": tiny, "fat": fat,
		"web": func(i int) *Pod {
			p := web()
			p.UID = fmt.Sprintf("u%d", i)
			return p
		},
		"containers": several(func(p *Pod, j int) { p.Containers = append(p.Containers, Container{Name: fmt.Sprintf("c%d", j)}) }),
		"quantities": several(func(p *Pod, _ int) {
			a := Amounts{CPU: "123456789.123456789", Memory: "1", EphemeralStorage: "9223372036854775807"}
			p.Containers = append(p.Containers[:0], Container{Name: "c", Resources: Resources{a, a}}, Container{Name: "d", Resources: Resources{a, a}}, Container{Name: "e", Resources: Resources{a, a}})
		}),
		"tolerations": several(func(p *Pod, _ int) { p.Tolerations = append(p.Tolerations, Toleration{Key: "k", Operator: "Exists"}) }),
		"volumes": several(func(p *Pod, j int) {
			p.Volumes = append(p.Volumes, Volume{Name: fmt.Sprintf("v%d", j), Type: "emptyDir"})
		}),
		"ephemeral": several(func(p *Pod, _ int) { p.EphemeralContainers = append(p.EphemeralContainers, "e") }),
		"one label": several(func(p *Pod, _ int) { p.Labels = map[string]string{"l": "v"} }),
		"nine labels": several(func(p *Pod, _ int) {
			p.Labels = map[string]string{"1": "", "2": "", "3": "", "4": "", "5": "", "6": "", "7": "", "8": "", "9": ""}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			const n = 150
			var lines [][]byte
			for i := range n {
				line, err := encode(&Message{Pod: pod(i)})
				if err != nil {
					t.Fatal(err)
				}
				lines = append(lines, line)
			}
			f := NewFacts()
			before := liveHeap()
			for _, line := range lines {
				m, err := decode(line)
				if err != nil {
					t.Fatal(err)
				}
				if why := f.put(m.Pod, testTime); why != "" {
					t.Fatal(why)
				}
			}
			took := liveHeap() - before
			t.Logf("%d bytes for each pod, counted as %d", took/n, f.size/n)
			if took > f.size {
				t.Errorf("%d pods take %d bytes, and count as %d; want no fewer", n, took, f.size)
			}
			runtime.KeepAlive(lines)
			runtime.KeepAlive(f)
		})
	}
}

// liveHeap returns the bytes of the reachable objects.
func liveHeap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// A hostile peer that sends as fast as it may for a minute, in which no GC runs because a
// threshold is met, makes less garbage than agent/self allows the heap to have (64 MiB), the
// facts included.
func TestPeerMakesBoundedGarbage(t *testing.T) {
	const longest = time.Minute
	const most = 56 << 20
	fill := func(before, element, after string) []byte {
		n := (maxPodSize - len(before) - len(after) - 1) / len(element)
		return []byte(before + strings.Repeat(element, n) + after + "\n")
	}
	start := `{"pod":{"uid":"u0000000","namespace":"default","name":"web-0","priority":1,`
	large, err := encode(&Message{Pod: fat(0)})
	if err != nil {
		t.Fatal(err)
	}
	small, err := encode(&Message{Pod: tiny(0)})
	if err != nil {
		t.Fatal(err)
	}
	for name, line := range map[string][]byte{
		"large":            large,
		"small":            small,
		"empty containers": fill(start+`"containers":[`, "{},", "{}]}}"),
		"few containers":   []byte(start + `"containers":[` + strings.Repeat("{},", 300) + "{}]}}\n"),
		"empty texts":      fill(start+`"ephemeralContainers":[`, `"",`, `""]}}`),
		"quantities":       fill(start+`"containers":[`, `{"name":"c","resources":{"requests":{"cpu":"1","memory":"1"}}},`, `{"name":"c"}]}}`),
		"escapes":          fill(start+`"phase":"`, `\u2028`, `"}}`),
		"labels":           fill(start+`"labels":{`, `"a":"b",`, `"a":"b"}}}`),
		"kubelet":          fill(`{"kubelet":{"evictionHard":{`, `"a":"b",`, `"a":"b"}}}`),
		"small kubelet":    []byte(`{"kubelet":{"evictionHard":{"nodefs.available":"1","pid.available":"2%"}}}` + "\n"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Server{Facts: NewFacts(), Changed: func() {}, Log: slog.New(slog.DiscardHandler)}
				conn, r := pipe(t, s)
				go func() { _, _ = io.Copy(io.Discard, r) }()
				began, sent, lines := time.Now(), 0, 0
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for time.Since(began) < longest {
					n, err := conn.Write(line)
					if err != nil {
						t.Fatal(err)
					}
					sent += n
					lines++
				}
				runtime.ReadMemStats(&after)
				garbage := after.TotalAlloc - before.TotalAlloc
				t.Logf("%d lines of %d bytes: %d bytes of garbage", lines, sent, garbage)
				if garbage > most {
					t.Errorf("%d bytes of garbage in %v; want at most %d", garbage, longest, most)
				}
				conn.Close()
				synctest.Wait()
			})
		})
	}
}

// What is saved is not larger than the facts, and is written one pod at a time.
func TestSavedIsBounded(t *testing.T) {
	f := NewFacts()
	for i := range MaxPods {
		f.put(fat(i), testTime)
	}
	var w largestWrite
	if _, err := f.Encode(&w); err != nil {
		t.Fatal(err)
	}
	if w.sum > maxFactsSize+1000 || w.largest > maxPodSize {
		t.Errorf("%d bytes written, at most %d at once; want at most %d and %d", w.sum, w.largest, maxFactsSize, maxPodSize)
	}
}

// largestWrite counts what is written.
type largestWrite struct{ sum, largest int }

func (w *largestWrite) Write(p []byte) (int, error) {
	w.sum, w.largest = w.sum+len(p), max(w.largest, len(p))
	return len(p), nil
}

// evictd accepts what evictd-kube sends about a pod, whatever a tenant may have written: a pod
// without facts would be spared.
func TestHostileTextsAreLeftOut(t *testing.T) {
	for i, text := range []string{"<", ">", "&", `"`, `\`, "\x00", "\xff", "\u2028", "ä", strings.Repeat("x", maxPlain+1)} {
		p := web()
		p.Labels[text], p.Labels["value"] = "v", text
		p.Tolerations = append(p.Tolerations, Toleration{Key: text}, Toleration{Operator: text}, Toleration{Value: text}, Toleration{Effect: text})
		p.Volumes = append(p.Volumes, Volume{Name: text}, Volume{Medium: text})
		p.EphemeralContainers = append(p.EphemeralContainers, text)
		p.Phase = text
		line, err := encodePod(p)
		if err != nil {
			t.Fatal(err)
		}
		m, err := decode(line)
		if err != nil {
			t.Fatal(err)
		}
		f := NewFacts()
		if why := f.put(m.Pod, testTime); why != "" {
			t.Errorf("text %d: %s", i, why)
			continue
		}
		got := m.Pod
		if len(got.Labels) != 1 || len(got.Tolerations) != 1 || len(got.Volumes) != 1 || len(got.EphemeralContainers) != 1 || got.Phase != "" || !got.Reduced {
			t.Errorf("text %d: %+v; want nothing of it, and reduced", i, got)
		}
		if len(p.Labels) != 3 || len(p.Volumes) != 3 {
			t.Errorf("text %d: the pod was changed", i)
		}
	}
}
