package config

import "time"

// Kube configures the connection to evictd-kube and the reports of evictions.
type Kube struct {
	// UID is the user ID of evictd-kube; 0 means that there is none, and evictd then
	// creates no socket for it.
	UID int64 `yaml:"uid"`
	// GID is the group ID of evictd-kube, to which the socket belongs; 0 means that it
	// is UID.
	GID int64 `yaml:"gid"`
	// FenceTimeout is how long an evicted pod of a kubelet is kept from running again while the
	// API server does not know that it was evicted.
	FenceTimeout time.Duration `yaml:"fenceTimeout"`
}

// The bounds of FenceTimeout and its default.
const (
	minFenceTimeout     = time.Minute
	maxFenceTimeout     = 24 * time.Hour
	defaultFenceTimeout = time.Hour
)

// Group returns the group to which the socket belongs.
func (k Kube) Group() int {
	if k.GID != 0 {
		return int(k.GID)
	}
	return int(k.UID)
}

// maxID is the largest user or group ID: 2^32-1 stands for none (chown(2)).
const maxID = 1<<32 - 2

// The user IDs from which systemd chooses that of a unit with DynamicUser= (systemd.exec(5)).
const (
	minDynamicUser = 61184
	maxDynamicUser = 65519
)

func (c *Config) checkKube() {
	const uid, gid = "kube.uid", "kube.gid"
	for _, f := range []struct {
		name string
		id   int64
	}{{uid, c.Kube.UID}, {gid, c.Kube.GID}} {
		if f.id < 0 || f.id > maxID {
			c.errorf(f.name, "is %d; want an ID from 1 to %d, or 0 for none", f.id, int64(maxID))
		}
	}
	if c.Kube.GID != 0 && c.Kube.UID == 0 && !c.failed(uid) {
		c.errorf(gid, "is %d without a %s; want both, or none", c.Kube.GID, uid)
	}
	const timeout = "kube.fenceTimeout"
	if d := c.Kube.FenceTimeout; (d < minFenceTimeout || d > maxFenceTimeout) && !c.failed(timeout) {
		c.errorf(timeout, "is %v; want a duration from %v to %v", d, minFenceTimeout, maxFenceTimeout)
	}
	if c.Admission == AdmissionEvict && !c.failed("admission") {
		switch {
		case c.Kube.UID == 0:
			c.noticef("admission", "has no effect without %s: evictd can't report a refused pod to the API server", uid)
		case c.Kubelet != KubeletAuto:
			c.noticef("admission", "has no effect with kubelet: %s", c.Kubelet)
		}
	}
	switch id := c.Kube.UID; {
	case id == 65532 || id == 65534: // distroless images' nonroot, and nobody
		c.noticef(uid, "%d is the user of many containers; want one that only evictd-kube has", id)
	case id >= minDynamicUser && id <= maxDynamicUser:
		c.noticef(uid, "%d may be the user of a systemd unit with DynamicUser=, which gets one from %d to %d; want one that only evictd-kube has",
			id, minDynamicUser, maxDynamicUser)
	}
}
