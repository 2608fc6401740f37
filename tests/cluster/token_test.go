package cluster

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"time"
)

// leeway is how long after its end the API server accepts a token (go-jose's default).
const leeway = time.Minute

// token returns a token of the service account evictd-kube, bound to the Node n1 if there is one, that the API server
// accepts for a lifetime. It would itself issue none for less than ten minutes.
func (r *rig) token(lifetime time.Duration) string {
	r.t.Helper()
	account := decode[named](r.t, r.must("GET", "/api/v1/namespaces/evictd/serviceaccounts/evictd-kube", ""))
	claims := map[string]any{"namespace": "evictd", "serviceaccount": map[string]string{"name": "evictd-kube", "uid": account.Metadata.UID}}
	if answer, err := r.request("GET", "/api/v1/nodes/n1", "", ""); err == nil {
		claims["node"] = map[string]string{"name": "n1", "uid": decode[named](r.t, answer).Metadata.UID}
	}
	now := time.Now()
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			r.t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	signed := part(map[string]string{"alg": "RS256", "typ": "JWT"}) + "." + part(map[string]any{
		"iss": issuer, "aud": []string{issuer}, "sub": "system:serviceaccount:evictd:evictd-kube",
		"iat": now.Add(-2 * leeway).Unix(), "nbf": now.Add(-2 * leeway).Unix(), "exp": now.Add(lifetime - leeway).Unix(),
		"kubernetes.io": claims,
	})
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, r.Key, crypto.SHA256, sum[:])
	if err != nil {
		r.t.Fatal(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}
