package config

// Kube configures the socket for evictd-kube.
type Kube struct {
	// UID is the user ID of evictd-kube; 0 means that there is none, and evictd then
	// creates no socket for it.
	UID int64 `yaml:"uid"`
	// GID is the group ID of evictd-kube, to which the socket belongs; 0 means that it
	// is UID.
	GID int64 `yaml:"gid"`
}

// Group returns the group to which the socket belongs.
func (k Kube) Group() int {
	if k.GID != 0 {
		return int(k.GID)
	}
	return int(k.UID)
}

// maxID is the largest user or group ID: 2^32-1 stands for none (chown(2)).
const maxID = 1<<32 - 2

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
	switch c.Kube.UID {
	case 65532, 65534: // distroless images' nonroot, and nobody
		c.noticef(uid, "%d is the user of many containers; want one that only evictd-kube has", c.Kube.UID)
	}
}
