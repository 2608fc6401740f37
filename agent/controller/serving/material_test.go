package serving

import (
	"bytes"
	"crypto/x509"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const testName = "evictd-controller-webhook.evictd.svc"

var begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// renew returns the renewed material, by way of the Secret's data.
func renew(t *testing.T, m *material, now time.Time) (*material, bool) {
	t.Helper()
	next, changed, err := m.renewed(now, testName)
	if err != nil {
		t.Fatal(err)
	}
	return parsed(t, next), changed
}

func parsed(t *testing.T, m *material) *material {
	t.Helper()
	data, err := m.data()
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseMaterial(data, testName)
	if err != nil {
		t.Fatal(err)
	}
	if got.serving == nil {
		t.Fatal("the serving certificate was not accepted")
	}
	return got
}

// verify reports whether a client that trusts a bundle accepts a server at a time.
func verify(t *testing.T, bundle []byte, m *material, now time.Time) error {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatal("the bundle has no certificate")
	}
	_, err := m.serving.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: testName, CurrentTime: now})
	return err
}

func TestRenewed(t *testing.T) {
	first, changed := renew(t, nil, begin)
	if !changed || len(first.authorities) != 1 {
		t.Fatalf("of no Secret: changed %t, %d authorities; want true, 1", changed, len(first.authorities))
	}
	for _, tt := range []struct {
		name string
		at   time.Time
		// What is made.
		authority, serving bool
	}{
		{"at once", begin, false, false},
		{"before the last third", begin.Add(60*day - time.Second), false, false},
		{"last third", begin.Add(60 * day), false, true},
		{"expired", begin.Add(91 * day), false, true},
		{"clock behind", begin.Add(-time.Hour), false, false},
		{"clock far behind", begin.Add(-2 * time.Hour), true, true},
		{"last third of the authority, serving certificate expired", begin.Add(authorityLifetime * 2 / 3), true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			next, changed := renew(t, first, tt.at)
			if changed != (tt.authority || tt.serving) {
				t.Errorf("changed = %t", changed)
			}
			if got := !next.authorities[0].Equal(first.authorities[0]); got != tt.authority {
				t.Errorf("new authority: %t; want %t", got, tt.authority)
			}
			if got := !next.serving.Leaf.Equal(first.serving.Leaf); got != tt.serving {
				t.Errorf("new serving certificate: %t; want %t", got, tt.serving)
			}
			if err := verify(t, next.bundle(), next, tt.at); err != nil {
				t.Errorf("a client with the bundle: %v", err)
			}
			if first.due(tt.at) != changed {
				t.Errorf("due = %t; want %t", !changed, changed)
			}
			if _, again := renew(t, next, tt.at); again || next.due(tt.at) {
				t.Errorf("renewed again at once: %t, due %t", again, next.due(tt.at))
			}
		})
	}
}

// TestLifetime renews for 25 years as a leader does. At every time a client whose bundle is a day old accepts the
// server, and the bundle stays small.
func TestLifetime(t *testing.T) {
	m, _ := renew(t, nil, begin)
	old, renewals := m.bundle(), 0
	for now := begin; now.Before(begin.Add(25 * 365 * day)); now = now.Add(day) {
		if m.due(now) {
			next, changed := renew(t, m, now)
			if !changed {
				t.Fatalf("%s: due, but not changed", now)
			}
			m = next
			renewals++
		}
		if err := verify(t, old, m, now); err != nil {
			t.Fatalf("%s: a client with the bundle of yesterday: %v", now, err)
		}
		if len(m.authorities) > 2 {
			t.Fatalf("%s: %d authorities", now, len(m.authorities))
		}
		old = m.bundle()
	}
	// Every 60 days one of the serving certificate; a new authority every 80 months, which also leaves 40 months later.
	if renewals < 150 || renewals > 165 {
		t.Errorf("%d renewals in 25 years; want about 155", renewals)
	}
}

// TestNewAuthorityWaits: a new authority does not sign before its clients know it.
func TestNewAuthorityWaits(t *testing.T) {
	m, _ := renew(t, nil, begin)
	// The serving certificate becomes due just after the authority.
	at := begin.Add(authorityLifetime * 2 / 3)
	serving, err := m.sign(at.Add(-60*day), testName)
	if err != nil {
		t.Fatal(err)
	}
	m.serving = serving
	next, _ := renew(t, m, at)
	if next.authorities[0].Equal(m.authorities[0]) || !next.serving.Leaf.Equal(serving.Leaf) {
		t.Fatal("a serving certificate was signed by an authority that is new")
	}
	if got, want := next.renewal(), at.Add(day); got.Before(want) || got.After(want.Add(time.Second)) {
		t.Errorf("renewal at %s; want %s", got, want)
	}
	later, _ := renew(t, next, at.Add(day+time.Second))
	if err := later.serving.Leaf.CheckSignatureFrom(next.authorities[0]); err != nil {
		t.Errorf("a day later: %v", err)
	}
}

func TestParseMaterial(t *testing.T) {
	m, _ := renew(t, nil, begin)
	data, err := m.data()
	if err != nil {
		t.Fatal(err)
	}
	other, _ := renew(t, nil, begin)
	otherData, err := other.data()
	if err != nil {
		t.Fatal(err)
	}
	foreign, _, err := (*material)(nil).renewed(begin, "other.evictd.svc")
	if err != nil {
		t.Fatal(err)
	}
	foreignData, err := foreign.data()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		change  map[string][]byte
		serving bool
		err     string
	}{
		{"whole", nil, true, ""},
		{"no authority", map[string][]byte{keyAuthority: nil}, false, "ca.crt has no certificate"},
		{"no PEM", map[string][]byte{keyAuthority: []byte("text")}, false, "ca.crt has no certificate"},
		{"broken authority", map[string][]byte{keyAuthority: encode("CERTIFICATE", []byte("x"))}, false, "ca.crt: x509: malformed certificate"},
		{"no authority's certificate", map[string][]byte{keyAuthority: data[keyServing]}, false, "ca.crt: certificate CN=evictd-controller webhook is not that of an authority"},
		{"too many", map[string][]byte{keyAuthority: bytes.Repeat(data[keyAuthority], 9)}, false, "ca.crt has more than 8 certificates"},
		{"too long", map[string][]byte{keyServing: make([]byte, maxPEM+1)}, false, "tls.crt has 65537 bytes, more than 65536"},
		{"no key", map[string][]byte{keyAuthorityKey: nil}, false, "ca.key: tls: failed to find any PEM data in key input"},
		{"other key", map[string][]byte{keyAuthorityKey: otherData[keyAuthorityKey]}, false, "ca.key: tls: private key does not match public key"},
		{"no serving certificate", map[string][]byte{keyServing: nil}, false, ""},
		{"other serving key", map[string][]byte{keyServingKey: otherData[keyServingKey]}, false, ""},
		{"of another authority", map[string][]byte{keyServing: otherData[keyServing], keyServingKey: otherData[keyServingKey]}, false, ""},
		{"of another name", foreignData, false, ""},
		{"the authority's own", map[string][]byte{keyServing: data[keyAuthority], keyServingKey: data[keyAuthorityKey]}, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := maps.Clone(data)
			maps.Copy(changed, tt.change)
			got, err := parseMaterial(changed, testName)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("parseMaterial = %v; want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (got.serving != nil) != tt.serving {
				t.Errorf("serving certificate accepted: %t; want %t", got.serving != nil, tt.serving)
			}
			next, changedByRenewal := renew(t, got, begin)
			if changedByRenewal == tt.serving || !next.authorities[0].Equal(got.authorities[0]) {
				t.Errorf("renewed: %t, with the same authority: %t", changedByRenewal, next.authorities[0].Equal(got.authorities[0]))
			}
		})
	}
}

// TestMaterialDamaged: with a byte that is changed, what is read is refused, or a client that has its bundle accepts what
// follows it.
func TestMaterialDamaged(t *testing.T) {
	m, _, err := (*material)(nil).renewed(begin, testName)
	if err != nil {
		t.Fatal(err)
	}
	data, err := m.data()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	keys := slices.Sorted(maps.Keys(data))
	refused := 0
	for range 500 {
		damaged := maps.Clone(data)
		key := keys[random.IntN(len(keys))]
		text := bytes.Clone(data[key])
		text[random.IntN(len(text))] ^= byte(1 + random.IntN(255))
		damaged[key] = text
		read, err := parseMaterial(damaged, testName)
		if err != nil {
			refused++
			continue
		}
		next, _, err := read.renewed(begin, testName)
		if err != nil {
			continue
		}
		if err := verify(t, next.bundle(), next, begin); err != nil {
			t.Errorf("a client with the bundle: %v", err)
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
}
