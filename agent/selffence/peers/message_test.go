package peers

import (
	"bytes"
	"strings"
	"testing"
)

var testKey, otherKey = []byte(strings.Repeat("k", minKey)), []byte(strings.Repeat("o", minKey))

func TestMessage(t *testing.T) {
	long := strings.Repeat("n", maxName)
	for _, want := range []message{
		{question, newNonce(), "a", "b"}, {reaches, newNonce(), "a", long}, {cannot, newNonce(), long, long},
	} {
		b := want.encode(testKey)
		got, key, err := decode(b, [][]byte{otherKey, testKey})
		if err != nil || !bytes.Equal(key, testKey) || got != want {
			t.Errorf("decode = %+v with key %q, %v; want %+v", got, key, err, want)
		}
		answer := message{cannot, want.nonce, want.to, want.from}.encode(testKey)
		if len(answer) != len(b) {
			t.Errorf("the answer has %d bytes, the question %d", len(answer), len(b))
		}
		if _, key, _ := decode(b, [][]byte{otherKey}); key != nil {
			t.Errorf("a datagram with another key is accepted")
		}
		for i := range b {
			changed := bytes.Clone(b)
			changed[i] ^= 1
			if m, key, err := decode(changed, [][]byte{testKey}); err == nil && key != nil {
				t.Fatalf("a datagram whose byte %d is changed is decoded: %+v", i, m)
			}
		}
	}
}

func TestMalformed(t *testing.T) {
	signed := func(body string) []byte { return append([]byte(body), sign(testKey, []byte(body))...) }
	nonce := strings.Repeat("x", nonceSize)
	for _, b := range [][]byte{
		nil, []byte(magic), signed(magic), signed(magic + "Q" + nonce), signed(magic + "Q" + nonce + "\x01a"),
		signed(magic + "Q" + nonce + "\x00\x01b"), signed(magic + "Q" + nonce + "\x01a\x02b"), signed(magic + "Q" + nonce + "\x01a\x01bc"),
		signed(magic + "X" + nonce + "\x01a\x01b"), signed("evictd-peer\x02Q" + nonce + "\x01a\x01b"),
		signed(magic + "Q" + nonce + "\xfe" + strings.Repeat("a", 254) + "\x01b"), bytes.Repeat([]byte("a"), maxDatagram+1),
	} {
		if m, _, err := decode(b, [][]byte{testKey}); err == nil {
			t.Errorf("decode(%q) = %+v; want an error", b, m)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(message{question, newNonce(), "node-1", "node-2"}.encode(testKey))
	f.Add(message{cannot, newNonce(), strings.Repeat("n", maxName), "b"}.encode(testKey))
	f.Add([]byte(magic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		// With the right HMAC, so that the rest is parsed.
		for _, datagram := range [][]byte{b, append(bytes.Clone(b), sign(testKey, b)...)} {
			m, key, err := decode(datagram, [][]byte{testKey})
			if err != nil || key == nil {
				continue
			}
			if again := m.encode(key); !bytes.Equal(again, datagram) {
				t.Errorf("decode(%q) = %+v, which encodes to %q", datagram, m, again)
			}
		}
	})
}

func TestKeys(t *testing.T) {
	k, o := string(testKey), string(otherKey)
	for _, test := range []struct {
		content string
		keys    int
	}{
		{k, 1}, {k + "\n", 1}, {k + "\n" + o, 2}, {"\n" + k + "\r\n\n" + o + "\n", 2},
		{"", 0}, {k[1:], 0}, {k + "\n" + o + "\n" + k, 0}, {strings.Repeat("k", maxKey+1), 0}, {strings.Repeat("\n", 10_000), 0},
	} {
		keys, err := parseKeys([]byte(test.content))
		if len(keys) != test.keys || (err != nil) != (test.keys == 0) {
			t.Errorf("parseKeys(%q) = %d keys, %v; want %d", test.content, len(keys), err, test.keys)
		}
		if err != nil && strings.Contains(err.Error(), "kkk") {
			t.Errorf("the error has the key: %v", err)
		}
	}
}
