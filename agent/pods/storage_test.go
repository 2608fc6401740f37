package pods

import (
	"strings"
	"testing"
	"time"

	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/cri/critest"
)

func TestStorageAnnotations(t *testing.T) {
	for _, tt := range []struct {
		name      string
		a         map[string]string
		request   int64 // of the pod
		limits    map[string]string
		emptyDirs string
		ignored   string
	}{
		{name: "none"},
		{name: "requests", a: map[string]string{annotationStorageRequests: "main=1Gi,side=512Mi"}, request: 3 << 29},
		{name: "a limit is a request too", a: map[string]string{annotationStorageLimits: "main=1Gi"}, request: 1 << 30, limits: map[string]string{"main": "1Gi"}},
		{name: "both", a: map[string]string{annotationStorageLimits: "main=2Gi, side=1Gi", annotationStorageRequests: "main=1Gi"}, request: 2 << 30, limits: map[string]string{"main": "2Gi", "side": "1Gi"}},
		{name: "volumes", a: map[string]string{annotationEmptyDirLimits: "cache=1Gi,tmp=5M"}, emptyDirs: "cache=1Gi tmp=5M"},
		{name: "another container", a: map[string]string{annotationStorageLimits: "main=1Gi,other=1Gi"}, ignored: "no container is named"},
		{name: "twice", a: map[string]string{annotationStorageLimits: "main=1Gi,main=2Gi"}, ignored: "not quantities by name"},
		{name: "no name", a: map[string]string{annotationStorageLimits: "1Gi"}, ignored: "not quantities by name"},
		{name: "empty name", a: map[string]string{annotationEmptyDirLimits: "=1Gi"}, ignored: "not quantities by name"},
		{name: "negative", a: map[string]string{annotationStorageRequests: "main=-1"}, ignored: "not quantities by name"},
		{name: "empty", a: map[string]string{annotationEmptyDirLimits: ""}, ignored: "not quantities by name"},
		{name: "a kubelet's pod", a: map[string]string{evict.ConfigSourceAnnotation: "api", annotationStorageLimits: "main=1Gi"}, ignored: "trustAnnotations"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, true)
			p := n.addPod(critest.Pod{Annotations: tt.a, Containers: []critest.Container{{Name: "main", PID: 100}, {Name: "side", PID: 101}}})
			i := n.synced()
			pod := i.Measure(time.Now()).Pods[0]
			if got := pod.Request("ephemeral-storage"); got != tt.request {
				t.Errorf("request = %d; want %d", got, tt.request)
			}
			for _, c := range pod.Containers {
				got, want := "", tt.limits[c.Name]
				if q := c.Resources.Limits.EphemeralStorage; q != nil {
					got = q.String()
				}
				if got != want {
					t.Errorf("limit of %s = %q; want %q", c.Name, got, want)
				}
			}
			var volumes []string
			for _, v := range pod.Volumes {
				volumes = append(volumes, v.Name+"="+v.SizeLimit.String())
			}
			if got := strings.Join(volumes, " "); got != tt.emptyDirs {
				t.Errorf("emptyDirs = %q; want %q", got, tt.emptyDirs)
			}
			ignored := strings.Join(i.Describe(p.UID).Ignored, "\n")
			if (ignored == "") != (tt.ignored == "") || !strings.Contains(ignored, tt.ignored) {
				t.Errorf("ignored = %q; want %q", ignored, tt.ignored)
			}
		})
	}
}

func FuzzParseNamedQuantities(f *testing.F) {
	for _, text := range []string{"main=1Gi,side=2", "", ",", "=", "a==1", "a=1,a=2", "a=1e999999", " a = 1", "a=\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseNamedQuantities(text)
		for _, n := range all {
			if err != nil || n.name == "" || n.amount.Sign() < 0 {
				t.Errorf("parseNamedQuantities(%q) = %v, %v", text, all, err)
			}
		}
	})
}
